package validation

// OtherGroups gives tests the rules of all kinds that workloads.RulesFor does not know.
var OtherGroups = otherGroups
