// Package bettertls puts the path building of palyra/crypt/ca through the cases of Netflix's
// BetterTLS: name constraints, and paths through graphs of authorities. It is a module of its own,
// so that they are no dependency of Palyra.
//
//	cd conformance/bettertls && go test ./...
//
// It doesn't protect against an error that the cases don't try. Tests of crypt/ca
// try what ca.Verify asks beyond a path.
package bettertls
