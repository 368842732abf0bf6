"""What the Open Responses compliance suite asks of a server, asked in our own words, over HTTP and over a WebSocket."""
