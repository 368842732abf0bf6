"""The tests of every room; shared peers stand in `fakes`, shared bytes in `data`."""
