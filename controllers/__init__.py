"""The SDN controller: forwards packets and impairs the network on schedule."""
