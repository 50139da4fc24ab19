"""Worker hosts on a cluster: the engines that place them, and the driver that follows them."""
