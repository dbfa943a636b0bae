"""How an algorithm is proven before it costs anything."""
