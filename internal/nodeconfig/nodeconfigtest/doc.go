// Package nodeconfigtest loads configurations of a node in tests.
package nodeconfigtest
