// Package quota computes what an object uses of a namespace's resource quotas. The admission plugin
// and the quota controller share it, so that both count in the same way.
//
// It defines the names of counted resources and the scopes. It does not sum over objects, and does
// not read or write any.
package quota
