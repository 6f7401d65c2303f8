from atom.cli.shell.folding import folded

WORDS = "one two three four five six seven"


def test_lines_break_between_words_and_are_no_longer_than_the_terminal() -> None:
    lines = list(folded(WORDS, 20))
    assert lines == ["one two three four", "five six seven"]
    assert list(folded(WORDS, 100)) == [WORDS]
    assert list(folded("", 80)) == [""]


def test_commands_stay_whole() -> None:
    command = "(`atom set device.memory= host.memory=`),"
    assert list(folded(f"allow more {command} or all", 30)) == ["allow more", command, "or all"]


def test_a_word_that_no_line_holds_is_not_broken() -> None:
    address = "/ip4/10.0.0.5/tcp/31337/p2p/12D3KooW"
    assert list(folded(f"join: {address} now", 20)) == ["join:", address, "now"]


def test_an_absurdly_narrow_terminal_does_not_get_a_line_for_each_letter() -> None:
    assert list(folded(WORDS, -3)) == list(folded(WORDS, 20))
