"""What every service process needs: settings, logs, metrics, errors, gRPC, ids. Knows no domain word."""
