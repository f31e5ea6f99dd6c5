// Package hutch is the root of the module and holds no code, only the tests
// that keep the module's rules: who may import whom, which module has its home
// where, and that generated files and documents are true to the source.
//
// Programs use package box and package box/local:
//
//	rt, err := local.Open(ctx, local.Config{})
//	...
//	b, err := rt.Create(ctx, box.Spec{Image: "python:3.12-slim"})
//	...
//	out, err := b.Command(ctx, "python", "-c", "print(6*7)").Output()
//
// README.md says what Hutch is, ARCHITECTURE.md how it works.
package hutch
