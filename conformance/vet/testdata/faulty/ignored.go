//go:build ignore

package faulty

//go:debug panicnil=1
