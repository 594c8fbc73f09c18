"""The methods of learning, each in a file of its own: the values of `astune.algorithm.method`."""
