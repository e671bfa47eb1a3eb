"""What `gguflow chat` is made of."""
