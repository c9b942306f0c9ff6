// SPDX-License-Identifier: MIT

// Checks of the module names in adapter options.

#include "compiler/Adapt/AdapterTargetChecks.h"

#include "runtime/Options/OptionTable.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

using Paths = std::vector<std::string>;

//===----------------------------------------------------------------------===//
// The modules of a model
//===----------------------------------------------------------------------===//

static HeadLossOp findHead(ModuleOp root) {
  HeadLossOp head;
  root.walk([&](HeadLossOp op) {
    head = op;
    return WalkResult::interrupt();
  });
  return head;
}

std::string qlora::headPath(ModuleOp root) {
  HeadLossOp head = findHead(root);
  auto name = head ? head->getLoc()->findInstanceOf<NameLoc>() : NameLoc();
  return name ? name.getName().str() : std::string();
}

static bool contains(const Paths &paths, StringRef path) {
  return llvm::is_contained(paths, path);
}

NamedModules qlora::findModules(ModuleOp root, func::FuncOp function) {
  NamedModules modules;
  const auto add = [](Paths &paths, StringRef path) {
    if (!contains(paths, path))
      paths.push_back(path.str());
  };
  for (Operation &op : function.front()) {
    if (isReference(&op))
      continue;
    auto product = dyn_cast<WeightedMatmul>(op);
    if (product && product.getModule() && product.getProduct())
      add(product.getGroupOffsets() ? modules.experts : modules.adaptable,
          *product.getModule());
    auto embedding = dyn_cast<EmbeddingOp>(op);
    if (embedding && !embedding.getModulePath().empty())
      add(modules.adaptable, embedding.getModulePath());
  }
  modules.head = headPath(root);
  if (HeadLossOp head = findHead(root))
    if (auto weight = head.getWeight().getDefiningOp<WeightOp>())
      if (StringRef path = weight.getParameter().rsplit('.').first;
          path != modules.head)
        modules.tiedTo = path.str();
  for (auto parameter : root.getOps<model::ParameterOp>()) {
    auto [module, name] = parameter.getSymName().rsplit('.');
    if (!parameter.getInit() && name == "weight" && module != modules.head &&
        !contains(modules.adaptable, module))
      add(modules.others, module);
  }
  return modules;
}

SmallVector<StringRef> qlora::untrainedParts(ModuleOp root) {
  SmallVector<StringRef> parts;
  if (auto config = root->getAttrOfType<DictionaryAttr>("model.config"))
    if (auto names = config.getAs<StringAttr>("untrained_modules"))
      names.getValue().split(parts, ' ');
  return parts;
}

//===----------------------------------------------------------------------===//
// Suggestions in errors
//===----------------------------------------------------------------------===//

std::string qlora::nameHint(const std::string &name, const Paths &modules) {
  llvm::SetVector<StringRef> names;
  for (StringRef module : modules)
    names.insert(module.substr(module.rfind('.') + 1));
  const std::string last = name.substr(name.rfind('.') + 1);
  const std::string near = nearestName(
      last, llvm::map_to_vector(names, [](StringRef n) { return n.str(); }));
  if (!near.empty() && near != last)
    return "did you mean '" + near + "'?";
  return "there are: " + llvm::join(names, ", ");
}

//===----------------------------------------------------------------------===//
// Targets, exclusions, layers
//===----------------------------------------------------------------------===//

static bool isNamed(const std::string &path, const std::string &name) {
  return path == name || path.ends_with("." + name);
}

/// Returns the modules that `name` matches, among adaptable ones and the head.
static Paths namedBy(const NamedModules &modules, const std::string &name) {
  Paths named;
  for (const std::string &path : modules.adaptable)
    if (isNamed(path, name))
      named.push_back(path);
  if (!modules.head.empty() && isNamed(modules.head, name))
    named.push_back(modules.head);
  return named;
}

static LogicalResult refuseHead(ModuleOp root, const NamedModules &modules) {
  auto error = root.emitError("lora_target_modules: '")
               << modules.head
               << "' is the LM head, which does not support adapters";
  if (modules.tiedTo.empty())
    return error << ". Fix: remove it, or train it in full with "
                    "modules_to_save";
  return error << " (it shares the weight of '" << modules.tiedTo
               << "', which does). Fix: remove it";
}

static LogicalResult checkTargetName(ModuleOp root, const NamedModules &modules,
                                     const TargetChoice &choice,
                                     const std::string &name) {
  const Paths named = namedBy(modules, name);
  const auto isElsewhere = [&](const Paths &paths) {
    return llvm::any_of(paths, [&](auto &path) { return isNamed(path, name); });
  };
  if (named.empty()) {
    // attach-expert-adapters reports experts, checkOthers() other modules.
    if (isElsewhere(modules.experts) || isElsewhere(modules.others) ||
        llvm::any_of(modules.experts, [&](StringRef path) {
          return isNamed(path.rsplit('.').first.str(), name);
        }))
      return success();
    return root.emitError("lora_target_modules: '")
           << name << "' matches no linear or embedding; "
           << nameHint(name, modules.adaptable);
  }
  if (llvm::all_of(
          named, [&](auto &path) { return isSavedModule(path, choice.saved); }))
    return root.emitError("lora_target_modules: '")
           << name << "' is also in modules_to_save, which trains it in "
              "full. Fix: remove it from one of the two";
  return success();
}

static bool isChosen(const TargetChoice &choice, const std::string &path) {
  return choice.targets.matches(path) && !isSavedModule(path, choice.saved) &&
         !(choice.excluded && choice.excluded->matches(path));
}

/// Like PEFT, fails if a target is neither a linear nor an embedding.
static LogicalResult checkOthers(ModuleOp root, const NamedModules &modules,
                                 const TargetChoice &choice) {
  for (const std::string &module : modules.others)
    if (isChosen(choice, module))
      return root.emitError("lora_target_modules: ")
             << choice.text << " matches '" << module
             << "', which is neither a linear nor an embedding. Fix: remove "
                "it";
  return success();
}

/// Fails if an exclusion matches no module, trained or not.
static LogicalResult checkExclusions(ModuleOp root, const NamedModules &modules,
                                     const TargetChoice &choice) {
  if (!choice.excluded)
    return success();
  Paths all = modules.adaptable;
  for (const Paths *more : {&modules.experts, &modules.others})
    llvm::append_range(all, *more);
  all.push_back(modules.head);
  const auto isUntrained = [&](StringRef text) {
    return llvm::any_of(untrainedParts(root),
                        [&](StringRef part) { return text.contains(part); });
  };
  const auto refuse = [&](StringRef text) {
    return root.emitError("exclude_modules: ")
           << text << " matches no module; "
           << nameHint(text.str(), modules.adaptable);
  };
  for (const std::string &name : choice.excluded->getNames())
    if (!isUntrained(name) &&
        llvm::none_of(all, [&](auto &path) { return isNamed(path, name); }))
      return refuse("'" + name + "'");
  const bool isList = !choice.excluded->getNames().empty();
  if (!isList && !isUntrained(choice.excludedText) &&
      llvm::none_of(all,
                    [&](auto &path) { return choice.excluded->matches(path); }))
    return refuse(choice.excludedText);
  Paths targets = modules.adaptable;
  llvm::append_range(targets, modules.experts);
  llvm::erase_if(targets, [&](auto &path) {
    return !choice.targets.matches(path) || isSavedModule(path, choice.saved);
  });
  if (!targets.empty() && llvm::all_of(targets, [&](auto &path) {
        return choice.excluded->matches(path);
      }))
    return root.emitError("exclude_modules: ")
           << choice.excludedText
           << " excludes all modules of lora_target_modules. Fix: remove it";
  return success();
}

LogicalResult qlora::checkTargetNames(ModuleOp root,
                                      const NamedModules &modules,
                                      const TargetChoice &choice) {
  if (failed(checkExclusions(root, modules, choice)))
    return failure();
  if (choice.targets.isAllLinear())
    return success();
  if (!modules.head.empty() && isChosen(choice, modules.head))
    return refuseHead(root, modules);
  for (const std::string &name : choice.targets.getNames())
    if (failed(checkTargetName(root, modules, choice, name)))
      return failure();
  if (std::optional<int64_t> layer =
          choice.targets.findUnmatchedLayer(modules.adaptable))
    return root.emitError("layers_to_transform: layer ")
           << *layer << " has no module of lora_target_modules. Fix: remove "
           << *layer << " from the list";
  return checkOthers(root, modules, choice);
}

LogicalResult qlora::checkPatternNames(ModuleOp root, StringRef option,
                                       const ValuePatterns &patterns,
                                       const Paths &adapted) {
  std::optional<std::string> key = patterns.findUnmatched(adapted);
  if (!key)
    return success();
  return root.emitError(option)
         << ": '" << *key << "' matches no module with an adapter; "
         << nameHint(*key, adapted);
}
