package fault

// Code is a reason code on which our own code branches: a sentinel, which errors.Is finds in
// every Error of that reason. A client's error has the reason of the server's, so it finds it
// there, too. A record that holds a reason as text is compared as Code(text).
type Code string

// The codes. Each stands in Reasons.
const (
	ErrApplyUnfinished    Code = "apply_unfinished"
	ErrBudget             Code = "budget"
	ErrBudgetBytes        Code = "budget_bytes"
	ErrBudgetCalls        Code = "budget_calls"
	ErrBudgetCost         Code = "budget_cost"
	ErrBudgetTokens       Code = "budget_tokens"
	ErrBudgetWall         Code = "budget_wall"
	ErrCertificateExpired Code = "peer_certificate_expired"
	ErrChanged            Code = "changed"
	ErrConnectionLost     Code = "connection_lost"
	ErrContextBudget      Code = "context_budget_exhausted"
	ErrDiskFull           Code = "disk_full"
	ErrDiskLow            Code = "disk_low"
	ErrExists             Code = "exists"
	ErrFeatureOff         Code = "feature_off"
	ErrIO                 Code = "io_error"
	ErrIncompleteAnswer   Code = "incomplete_final_answer"
	ErrInvalidInput       Code = "invalid_input"
	ErrJSONTooLarge       Code = "json_too_large"
	ErrKeyReused          Code = "idempotency_key_reused"
	ErrKeysLocked         Code = "keys_locked"
	ErrLocked             Code = "locked"
	ErrMaxTurns           Code = "max_turns"
	ErrNoProgram          Code = "program_not_found"
	ErrNoSession          Code = "no_such_session"
	ErrNotReady           Code = "not_ready"
	ErrNotFound           Code = "not_found"
	ErrNotPermitted       Code = "not_permitted"
	ErrOverlayUnavailable Code = "overlay_unavailable"
	ErrPolicyChanged      Code = "policy_changed"
	ErrPolicyInvalid      Code = "policy_invalid"
	ErrPolicyNeverMatches Code = "policy_never_matches"
	ErrPolicyTestFailed   Code = "policy_test_failed"
	ErrPolicyUntested     Code = "policy_untested"
	ErrProvider           Code = "provider_error"
	ErrQueueFull          Code = "queue_full"
	ErrQuota              Code = "quota"
	ErrRolledBack         Code = "rolled_back"
	ErrSafeMode           Code = "safe_mode"
	ErrSecretExpired      Code = "secret_expired"
	ErrStateMissing       Code = "state_missing"
	ErrStoreCorrupt       Code = "store_corrupt"
	ErrTooLarge           Code = "too_large"
	ErrTooMany            Code = "too_many"
	ErrToolChanged        Code = "tool_changed"
	ErrUnauthenticated    Code = "unauthenticated"
	ErrUnreachable        Code = "daemon_unreachable"
	ErrUnsafeFile         Code = "unsafe_file"
	ErrVersionConflict    Code = "version_conflict"
)

// Error returns the code.
func (c Code) Error() string { return string(c) }

// Is reports whether target is the Code of e's reason.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && string(c) == e.Reason
}
