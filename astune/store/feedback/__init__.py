"""What people and judges say of answers, and what becomes of it."""
