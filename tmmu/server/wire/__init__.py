"""The server's end of the wire: connections, calls, and the services behind them."""
