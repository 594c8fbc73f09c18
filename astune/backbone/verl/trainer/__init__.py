"""The side of verl that trains: rows, the loss, the workers that hold the weights, and the learner over them."""
