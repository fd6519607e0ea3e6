"""What several processes that train one model tell each other, and agree on."""
