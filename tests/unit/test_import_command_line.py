"""Which lines need a shell, and what the others come to: checked against a real one."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hourhand.surfaces.importing.command_line import NeedsShell, read_command
from hourhand.surfaces.importing.translation import Untranslatable


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("/usr/bin/backup --full /srv", ["/usr/bin/backup", "--full", "/srv"]),
        ("  backup\t a  b  ", ["backup", "a", "b"]),
        ("""say 'it''s' "two words" a\\ b""", ["say", "its", "two words", "a b"]),
        ('say "a\\"b" "c\\\\d" "\\$HOME" "x\\y"', ["say", 'a"b', "c\\d", "$HOME", "x\\y"]),
        ("say '$HOME' '`date`' '*' '~' \\$HOME \\*", ["say", "$HOME", "`date`", "*", "~", "$HOME", "*"]),
        ("say '' \"\"", ["say", "", ""]),
        ("backup --to=x # nightly; > all of it", ["backup", "--to=x"]),
        ("say a#b", ["say", "a#b"]),
        ("say costs 5$ '5$' \"5$\"", ["say", "costs", "5$", "5$", "5$"]),
        ("find /tmp -exec rm {} \\;", ["find", "/tmp", "-exec", "rm", "{}", ";"]),
        ("[ -e /etc/passwd ]", ["[", "-e", "/etc/passwd", "]"]),
        ("say a~b x=1 --y=2", ["say", "a~b", "x=1", "--y=2"]),
        ("'cd' /srv", ["cd", "/srv"]),
    ],
)
def test_a_plain_line_is_read_as_a_shell_reads_it(line: str, argv: list[str]) -> None:
    read = read_command(line)
    assert (read.argv, read.cwd, read.silenced) == (argv, None, False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a | b", "pipeline"),
        ("a && b", "&& joins"),
        ("a || b", "|| joins"),
        ("a; b", "; joins"),
        ("a &", "background"),
        ("a > /var/log/a.log 2>&1", "redirected to /var/log/a.log"),
        ("a >> /var/log/a.log", "redirected to /var/log/a.log"),
        ("a 3> /dev/null", "redirected to /dev/null"),
        ("a < /etc/passwd", "input is redirected"),
        ("a << EOF", "input is redirected"),
        ("(a)", "parentheses"),
        ("a $HOME", "$HOME is replaced"),
        ('a "$(date)"', "$( is replaced"),
        ("a ${X}y", "${X} is replaced"),
        ("a $'x'", "is replaced"),
        ("a `date`", "backquotes"),
        ('a "`date`"', "backquotes"),
        ("rm /tmp/*.log", "* is a pattern"),
        ("rm /tmp/a?", "? is a pattern"),
        ("rm /tmp/[ab]", "[ is a pattern"),
        ("a ~/x", "home directory"),
        ("a --dir=~/x", "home directory"),
        ("a {b,c}", "braces"),
        ("a {1..9}", "braces"),
        ("X=1 a", "sets X"),
        ("X=1", "sets X"),
        (". /etc/profile", "word of the shell"),
        ("source /etc/profile", "word of the shell"),
        ("cd /srv", "word of the shell"),
        ("exec a", "word of the shell"),
        ("if true; then a; fi", "; joins"),
        ("! a", "word of the shell"),
        ("cd /srv && a | b", "pipeline"),
        ("cd /srv && cd b", "word of the shell"),
        ("cd - && a", "&& joins"),
        ("a &> /var/log/a", "redirected to /var/log/a"),
    ],
)
def test_what_only_a_shell_can_do_is_named(line: str, said: str) -> None:
    with pytest.raises(NeedsShell) as refused:
        read_command(line)
    assert said in str(refused.value)


@pytest.mark.parametrize("line", ["", "   ", "# nothing", "''", "a 'b", 'a "b', "> /dev/null"])
def test_what_no_shell_can_do_either_is_refused_for_good(line: str) -> None:
    with pytest.raises(Untranslatable) as refused:
        read_command(line)
    assert not isinstance(refused.value, NeedsShell)


@pytest.mark.parametrize(
    "end",
    [">/dev/null", "> /dev/null 2>&1", ">/dev/null 2>/dev/null", "1>/dev/null 2>&1", "&>/dev/null", ">& /dev/null", ">>/dev/null 2>&1",
     "2>&1 >/dev/null", "</dev/null >/dev/null 2>&1", "> /dev/null 2>&1 # quiet"],
)  # fmt: skip
def test_output_that_is_thrown_away_is_left_out(end: str) -> None:
    read = read_command(f"backup 2 {end}")
    assert (read.argv, read.silenced) == (["backup", "2"], True)


def test_streams_that_are_joined_are_left_out_too() -> None:
    read = read_command("backup 2>&1")
    assert (read.argv, read.silenced) == (["backup"], False)


def test_a_change_of_directory_is_where_it_starts() -> None:
    read = read_command("cd '/srv/my shop/' && ./poll --all > /dev/null")
    assert (read.argv, read.cwd, read.silenced, read.lax) == (["./poll", "--all"], "/srv/my shop", True, False)
    assert read_command("cd /srv; ./poll").lax


PIECES = st.sampled_from([*"abz019 \t'\"\\#=-_./:,%@+{}]^!~$[", "''", '""', "\\'", '\\"', "a=b", "--x", " # ", "$ "])


@given(st.lists(PIECES, max_size=12).map("".join))
@example("\\")
@example('"\\"')
def test_a_real_shell_agrees(line: str) -> None:
    """Whatever is read without a shell, a shell reads in the same way; printf only shows it."""
    try:
        read = read_command(f"x {line}")
    except Untranslatable:
        return
    done = subprocess.run(["/bin/sh", "-c", f"printf '%s\\0' x {line}"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\0")[:-1] == read.argv
