"""What happens to an upload between the method and the wire."""
