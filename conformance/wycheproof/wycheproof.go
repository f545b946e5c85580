// Package wycheproof puts Palyra's cryptography through C2SP's test vectors of that name. It is
// a module of its own, so that they are no dependency of Palyra.
//
//	cd conformance/wycheproof && go test ./...
//
// It doesn't protect against an error that the vectors don't try.
package wycheproof
