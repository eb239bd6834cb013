// Package cis holds the controls of the CIS Kubernetes Benchmark by number and title, the results of checking them,
// and their output. Packages control/cis and node/cis check the controls.
package cis
