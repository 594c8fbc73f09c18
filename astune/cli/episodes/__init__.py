"""Commands about recorded episodes: `astune replay`, `astune rescore` and `astune diff`."""
