// Package localvolumes defines the names and messages that the control server and the agent share for the class local:
// those of the CSI driver, and of the endpoint /localvolumes of a node. Package volumes/local serves the endpoint, package
// control/controllers calls it.
package localvolumes
