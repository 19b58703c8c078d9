"""What uploads give away: which classes a client has, which samples were in them."""
