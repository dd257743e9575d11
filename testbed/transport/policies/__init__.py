"""What a protocol may choose: tolerances, repairs, orders, marks and congestion controls."""
