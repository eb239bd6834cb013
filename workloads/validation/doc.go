// Package validation implements defaulting and validation of the kinds of the API groups apps and batch. The control
// server uses it for API objects, the node agent for manifest files. The rules of all other kinds are in
// control/validation.
//
// The package is pure, except that it looks up time zones in the database of the program or the host. It keeps the
// invariants of control/validation. The agent links it: it must not import other API groups (test/arch).
package validation
