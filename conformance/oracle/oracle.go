// Package oracle checks our journals and receipts with code that we didn't write:
// transparency-dev's Merkle tree, note and proof formats, tessera's fsck, and
// secure-systems-lab's DSSE. It is a module of its own so that none of them is a dependency
// of Palyra.
//
//	cd conformance/oracle && go test ./...
//
// It doesn't protect against an error in the specification that both sides read the same
// way.
package oracle
