"""The parts that models are composed of."""
