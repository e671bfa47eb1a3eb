"""Native kernels: sources, and the libraries built from them."""
