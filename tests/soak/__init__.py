"""Mixed traffic with faults for a long time, and what a gateway holds before and after it."""
