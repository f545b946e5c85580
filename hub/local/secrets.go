package local

import "palyra/authz/policy"

// holdsSecret reports whether an input has the value of a secret that was given to a call of user.
func (h *Hub) holdsSecret(user string, input []byte) bool {
	return h.k.HoldsSecret(&policy.Entity{Type: policy.TypeUser, ID: user}, input)
}
