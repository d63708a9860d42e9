"""Records of measurements as one page of figures. So far: the statistics of paired changes."""
