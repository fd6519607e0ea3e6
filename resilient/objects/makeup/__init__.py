"""What a model trains with and no variable holds."""
