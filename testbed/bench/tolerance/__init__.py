"""How much loss does training bear? `./lab bench tolerance`: no network, many seeds."""
