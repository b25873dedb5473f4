"""An app without code of anybody's: a worker of it runs HTTP jobs and commands."""

from hourhand import Hourhand

app = Hourhand(name="hourhand")
