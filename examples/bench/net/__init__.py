"""bench-net: whole trainings between hosts of a network with a given speed."""
