"""What is done with whole ReLU models: counting, measuring, recording and training."""
