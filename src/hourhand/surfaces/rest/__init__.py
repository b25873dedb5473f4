"""The REST API: every verb over HTTP, for programs in any language and for people."""
