"""The processing stages of an upload between the method and the wire."""
