// Package quota says what an object uses of a namespace's resource quotas. The
// admission that refuses too much and the controller that counts anew ask it,
// so that both mean the same.
//
// It owns the names of what is counted and the scopes. It never counts over
// objects, reads or writes any.
package quota
