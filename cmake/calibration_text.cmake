# oscar_calibration_text: the program's own calibration text (src/engine/runtime/calibration_text.h), made at build time from
# the repository's documentation and sources, so that `oscar calibrate` needs no --text. The text is taken into the object
# by .incbin: an array of 600,000 literals would cost the compiler seconds and hundreds of megabytes.
file(GLOB prose CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/docs/*.md)
file(GLOB_RECURSE folder_prose CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.md)
file(GLOB public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/oscar/*.h)
file(GLOB_RECURSE code CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.h ${PROJECT_SOURCE_DIR}/src/*.cc)
list(FILTER code EXCLUDE REGEX "_(test|bench)\\.cc$")
set(prose ${prose} ${folder_prose})
set(code ${public_headers} ${code})

set(dir ${PROJECT_BINARY_DIR}/calibration_text)
set(OSCAR_CALIBRATION_TEXT ${dir}/calibration_text.txt)
string(REPLACE ";" "\n" prose_lines "${prose}")
string(REPLACE ";" "\n" code_lines "${code}")
file(CONFIGURE OUTPUT ${dir}/prose_files.txt CONTENT "${prose_lines}\n" @ONLY)
file(CONFIGURE OUTPUT ${dir}/code_files.txt CONTENT "${code_lines}\n" @ONLY)
add_custom_command(
  OUTPUT ${OSCAR_CALIBRATION_TEXT}
  COMMAND ${CMAKE_COMMAND} -D PROSE_FILES=${dir}/prose_files.txt -D CODE_FILES=${dir}/code_files.txt
          -D OUTPUT=${OSCAR_CALIBRATION_TEXT} -P ${PROJECT_SOURCE_DIR}/cmake/make_calibration_text.cmake
  DEPENDS ${prose} ${code} ${dir}/prose_files.txt ${dir}/code_files.txt
          ${PROJECT_SOURCE_DIR}/cmake/make_calibration_text.cmake
  COMMENT "Making the calibration text"
  VERBATIM)
configure_file(${PROJECT_SOURCE_DIR}/cmake/calibration_text.cc.in ${dir}/calibration_text.cc @ONLY)
set_source_files_properties(${dir}/calibration_text.cc PROPERTIES OBJECT_DEPENDS ${OSCAR_CALIBRATION_TEXT})
add_library(oscar_calibration_text STATIC ${dir}/calibration_text.cc)
target_include_directories(oscar_calibration_text PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(oscar_calibration_text PUBLIC oscar_warnings oscar_sanitizers)
