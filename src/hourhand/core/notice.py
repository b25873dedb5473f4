"""What is told of an incident, in words and as data; and how its addresses are kept out of everything else that is said."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from hourhand.core.redaction import REDACTED, Clean, scrubber

OPENED, CLOSED, REMINDER, TEST = "opened", "closed", "reminder", "test"
_STATES = {OPENED: "", CLOSED: "over: ", REMINDER: "still: ", TEST: "test: "}
_PLAIN_HOSTS = ("http", "https", "json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos")
"""Schemes whose host is a host. In others of Apprise's it may be a token."""
_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s'"<>]+""")
_PATH = re.compile(r"""(\burl:? ?=?['"]?)/[^\s'"<>]+""", re.IGNORECASE)
"""The rest of an address, as urllib3 tells it."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An incident, as a channel or a function marked `@app.on_alert` is told of it."""

    id: int
    """Of the incident: the same when it is opened and when it is over."""
    state: str
    """`opened`, `closed`, `reminder`, or `test`."""
    rule: str
    kind: str
    subject: str
    """The queue, job, task or node that it is about; empty where it is about everything."""
    severity: str
    """`info`, `warning` or `critical`."""
    message: str
    value: float | None
    since: datetime
    """When it was opened."""
    until: datetime | None = None
    """When it was over; None: it is not."""
    link: str | None = None
    reminder: int = 0
    """Of a reminder: the how manieth."""

    @property
    def title(self) -> str:
        about = f" ({self.subject})" if self.subject else ""
        return f"[{self.severity}] {_STATES[self.state]}{self.rule}{about}"

    @property
    def text(self) -> str:
        """A few lines for a person."""
        lines = [self.message]
        if self.state == CLOSED and self.until is not None:
            lines.append(f"Over since {_at(self.until)}, after {in_words((self.until - self.since).total_seconds())}.")
        elif self.state != TEST:
            lines.append(
                f"Since {_at(self.since)}." if self.until is None else f"It was so from {_at(self.since)} to {_at(self.until)}."
            )
        if self.link:
            lines.append(self.link)
        return "\n".join(lines)

    @property
    def key(self) -> str:
        """The same whenever the same thing is told again: by it a receiver knows what it has had."""
        number = f"-{self.reminder}" if self.reminder else ""
        return f"alert-{self.id}-{int(self.since.timestamp())}-{self.state}{number}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "title": self.title}


def trial(now: datetime) -> Alert:
    """What `alerts test` sends."""
    return Alert(0, TEST, "test", "test", "", "info", "This is a test of Hourhand's alerts: this channel works.", None, now)


def slack_text(alert: Alert) -> str:
    """As Slack, and what imitates it, wants it: three characters mean something there."""
    return f"*{_escaped(alert.title)}*\n{_escaped(alert.text)}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _at(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def in_words(seconds: float) -> str:
    """`1.5 s`, `45 s`, `12 min`, `26 h`, `3 d`: about as exact as a person wants it."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def shown_address(address: str) -> str:
    """Enough to tell one from another, and nothing that would let anybody write there."""
    parts = urlsplit(address)
    host = parts.hostname or "" if parts.scheme in _PLAIN_HOSTS else ""
    return f"{parts.scheme}://{host}{'/' if host else ''}…"


def without_addresses(text: str) -> str:
    """What somebody else's code says, with of each URL in it only what may be shown."""

    def shown(found: re.Match[str]) -> str:
        try:
            return shown_address(found[0])
        except ValueError:
            return REDACTED

    return _PATH.sub(rf"\1{REDACTED}", _ADDRESS.sub(shown, text))


def address_cleaner(*secrets: str | None) -> Clean:
    """Takes out of any text what these addresses and tokens hold, whole or in part."""
    hidden: list[str] = []
    for secret in secrets:
        if secret is None:
            continue
        hidden.append(secret)
        try:
            parts = urlsplit(secret)
        except ValueError:
            continue
        values = [value for _, value in parse_qsl(parts.query)]
        found = [parts.username, parts.password, parts.path, parts.query, *parts.path.split("/"), *values]
        if parts.scheme not in _PLAIN_HOSTS:
            found += [parts.netloc, parts.hostname]
        hidden += [form for one in found if one for form in {one, unquote(one)} if len(form.strip("/")) >= 4]
    clean = scrubber({"hidden": hidden}, ("hidden",))
    return clean or (lambda text: text)
