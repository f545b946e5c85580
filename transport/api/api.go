// Package api is Palyra's HTTP interface as data: operations, problem documents, media
// types, and the OpenAPI document that is generated from them. The server is
// transport/httpapi, the client transport/client; neither knows the other.
//
//	p := api.ProblemOf(err, id, trusted) // what the outside learns of an error
//	err = p.Err("start run")             // the error again, on the other side
//
// # Contract
//
// A problem that was made from an error turns back into an error of the same kind, reason,
// hint and denial, as far as the caller may see them. The text of an error that isn't about
// the request never leaves: its class does, and an id that the log has too.
//
// The document is made from types by the rules of encoding/json and of canon.Decode, which
// both sides use. The package links neither net/http nor the kernel.
//
// # What it does not protect against
//
// Errors whose text holds a secret: the maker of a request sees the text about it.
// internal/fault forbids such errors.
package api
