"""What a Runner takes: hooks, averaged weights (EMA), strategies, optimizer constructors and randomness."""
