"""Charts need an extra; the terminal's report and ``watch`` do not."""

import pytest
from support.reported import killed_and_resumed

from resilient.cli.main import main
from resilient.report import extra

pytestmark = pytest.mark.once

START = 1_700_000_000


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path, capsys, monkeypatch
):
    killed_and_resumed(tmp_path / "run", START)
    monkeypatch.setattr(extra, "find_spec", lambda _: None)
    target = tmp_path / "file"
    assert main(["report", str(tmp_path / "run"), "--html", str(target)]) == 5
    assert 'pip install "keras-resilient[report]"' in capsys.readouterr().err
    assert not target.exists()
    for command in ("report", "watch"):
        assert main([command, str(tmp_path / "run")]) == 0
