// Line 3 does not compile.
int half(int x) {
  return x / undeclared;
}
