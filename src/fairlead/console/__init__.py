"""The console: what operators see and do in a browser, and the HTTP/JSON interface (docs/api.md) it stands on."""
