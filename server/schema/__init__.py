"""What requests may say: one class a body. The OpenAPI document is made of the same classes."""
