"""HTTP servers of ASTune: sockets and limits, what browsers may not do, and servers as child processes."""
